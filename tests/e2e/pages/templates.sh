git init -q -b main templates
mkdir templates/vision digits
echo 'def build():
    base(os="debian12")' >templates/vision/build.envd
git -C templates add vision
git -C templates -c user.name=team -c user.email=team@example.org commit -q -m "Add vision"
git -C templates tag v2
git config --file gitconfig url."$PWD/templates".insteadOf https://git.example.org/ml/templates.git
git config --file gitconfig --add url."$PWD/templates".insteadOf git@git.example.org:ml/templates.git
export GIT_CONFIG_GLOBAL=$PWD/gitconfig
cd digits
