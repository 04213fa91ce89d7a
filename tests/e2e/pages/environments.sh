mkdir digits ~/datasets
echo 'print("trained")' >digits/train.py
echo 'def test_digits(): pass' >digits/test_digits.py
cat >digits/build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
    install.python_packages(["pytest"])
END
