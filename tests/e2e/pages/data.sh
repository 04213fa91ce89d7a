mkdir ~/datasets digits && cd digits
touch ~/datasets/digits.csv
echo 'import os; print(os.listdir("/data"))' >list.py
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
END
