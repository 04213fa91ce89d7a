echo 'def build():
    base(os="debian12")
    install.python_packages(["six"])' >build.envd
danlu build -t digits:1
