mkdir digits && cd digits
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
END
cat >train.py <<'END'
from pathlib import Path

Path("checkpoints").mkdir(exist_ok=True)
Path("checkpoints/last.pt").write_text("trained")
END
danlu build # the other machine has the same store, and no network
