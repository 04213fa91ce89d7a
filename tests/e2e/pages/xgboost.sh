. "$ROOT/tests/e2e/pages/framework.sh" --framework xgboost --master 1 --worker 1 -- MASTER_ADDR MASTER_PORT WORLD_SIZE RANK DMLC_TASK_ID
