# A GPU that the scheduler counts and that nothing has, and a program in the place of NVIDIA's.
kubectl patch node node --subresource=status --type=merge \
    -p '{"status": {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "1"}}}'
mkdir digits && cd digits
printf '#!/bin/sh\necho GPU 0\n' >nvidia-smi
chmod +x nvidia-smi
cat >build.envd <<'END-OF-FILE'
def build():
    base(os="debian12")
    install.python()
    io.copy("nvidia-smi", "/usr/local/bin/nvidia-smi")
END-OF-FILE
