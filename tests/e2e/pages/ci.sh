IMAGE=registry.example.com/team/digits:1
echo 'def test_digits(): pass' >test_digits.py
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
    install.python_packages(["pytest"])
END
danlu lock
