. "$ROOT/tests/e2e/pages/framework.sh" --framework mpi --worker 2 -- OMPI_COMM_WORLD_RANK
cat >>build.envd <<'END'
    install.apt_packages(["openmpi-bin"])
END
danlu build -t framework-$$:1
cat >pi.yaml <<END
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi}
spec:
  launcherCreationPolicy: WaitForWorkersReady
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: pi, image: "framework-$$:1",
        workingDir: /workspace, command: [mpirun, -n, "2", python, train.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pi, image: "framework-$$:1", command: [/usr/sbin/sshd, -De]}]}}
END
