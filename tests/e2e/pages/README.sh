mkdir digits digits/package && cd digits
cat >train.py <<'END'
import os
import sys

print("rank", os.environ.get("RANK", "0"), "of", os.environ.get("WORLD_SIZE", "1"), sys.argv[1:])
END
touch package/__init__.py
cp train.py package/train.py
echo 'def build():
    base(os="debian12")
    install.python()' >image.envd
danlu build -f image.envd -t digits:1
danlu train train.py --framework pytorch --worker 2 --image digits:1 --dry-run -o yaml >pytorchjob.yaml
rm image.envd
