. "$ROOT/tests/e2e/pages/framework.sh" --framework pytorch --worker 2 -- MASTER_ADDR RANK
mkdir data
sed 's/^\( *\)containers:/\1volumes:\n\1- name: data\n\1  persistentVolumeClaim: {claimName: datasets}\n&/
s/^\( *\)command:/\1volumeMounts: [{name: data, mountPath: \/data}]\n\1resources: {limits: {nvidia.com\/gpu: 1}}\n&/' job.yaml >gpu.yaml
