echo 'def build():
    base(os="debian12")' >build.envd
danlu build -t registry.example.com/base:1 --push
rm build.envd danlu.lock
mkdir .devcontainer
cat >.devcontainer/devcontainer.json <<'END'
{
  // Comments and trailing commas are allowed.
  "image": "registry.example.com/base:1",
  "forwardPorts": [8000],
  "containerEnv": {"MODE": "test"},
}
END
