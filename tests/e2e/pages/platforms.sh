echo 'def build():
    base(os="debian12")' >build.envd
