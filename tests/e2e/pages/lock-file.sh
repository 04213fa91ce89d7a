cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
    install.python_packages(["numpy"])
END
