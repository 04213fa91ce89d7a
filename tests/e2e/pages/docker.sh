mkdir digits && cd digits
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
END
