. "$ROOT/tests/e2e/pages/framework.sh" --framework mpi --worker 2 -- OMPI_COMM_WORLD_RANK
cat >>build.envd <<'END'
    install.apt_packages(["openmpi-bin"])
END
danlu build -t framework-$$:1
