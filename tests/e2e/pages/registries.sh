echo 'def build():
    base(os="debian12")' >build.envd
danlu build -t digits:1
