. "$ROOT/tests/e2e/pages/framework.sh" --framework pytorch --worker 2 -- MASTER_ADDR MASTER_PORT WORLD_SIZE RANK PET_NNODES
