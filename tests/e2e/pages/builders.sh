cat >build.envd <<'END'
def build():
    base(os="debian12")
END
