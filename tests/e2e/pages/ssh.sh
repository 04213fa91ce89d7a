mkdir data
touch results.csv data/train.csv
echo 'print("trained")' >train.py
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
    install.apt_packages(["rsync"])
END
# Archives like those of VS Code: danlu reads product.json, and the processor of its programs.
commit=7d842fb85a0275a4a8e4d7e040d2625abbf7f084
mkdir -p archives/vscode-server-linux-x64/bin
(
    cd archives
    cat >vscode-server-linux-x64/product.json <<END
{"commit": "$commit", "nameShort": "Code", "version": "1.105.1", "quality": "stable",
 "serverApplicationName": "code-server", "serverDataFolderName": ".vscode-server"}
END
    cp /bin/true vscode-server-linux-x64/node
    printf '#!/bin/sh\n' >vscode-server-linux-x64/bin/code-server
    chmod +x vscode-server-linux-x64/bin/code-server
    tar -czf ../vscode-server-linux-x64.tar.gz vscode-server-linux-x64
    { cat /bin/true; echo "$commit"; } >code
    chmod +x code
    tar -czf ../vscode_cli_alpine_x64_cli.tar.gz code
)
