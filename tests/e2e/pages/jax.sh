. "$ROOT/tests/e2e/pages/framework.sh" --framework jax --worker 2 -- COORDINATOR_ADDRESS COORDINATOR_PORT NUM_PROCESSES PROCESS_ID
