. "$ROOT/tests/e2e/pages/framework.sh" --framework mxnet --scheduler 1 --server 1 --worker 2 -- DMLC_ROLE DMLC_PS_ROOT_URI MX_CONFIG
