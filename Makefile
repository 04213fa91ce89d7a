# Targets only call scripts and tools. CI runs the same targets (.ci/run).
PYTHON := .venv/bin/python
# Additional arguments to pytest for `make test-real`.
REAL :=
# Runs separately, because it uses the machine's network and cgroups.
CLUSTER := tests/operator/cluster

.PHONY: setup demo test test-all test-quick test-real test-slow test-ordinary-user test-engines test-operator \
	test-training test-notebook test-smoke test-examples test-install test-fresh test-mutation check bench bench-up bench-operator bench-serving \
	docs clean

setup:            ## install the system packages (listed first) and danlu in .venv
	@scripts/setup.sh

demo: setup       ## build an environment, train a digit classifier in it and use the model
	@examples/digits/verify

test: test-quick test-real ## run the tests that this machine can run, but for those of test-all; report the skipped ones

test-all: test test-slow test-operator test-training test-notebook test-examples test-mutation test-fresh ## run every test, also those that take long and rarely break

test-quick: setup ## run the tests that need no network, containers or root
	$(PYTHON) -m pytest -n auto

test-real: setup  ## run the tests with real containers, networks and environments
	@scripts/setup.sh --tests
	@scripts/test-real.sh -m "real and not slow" --ignore $(CLUSTER) $(REAL)

test-slow: setup  ## run the tests with real containers that take long
	@scripts/setup.sh --tests
	@scripts/test-real.sh -m "real and slow" --ignore $(CLUSTER) $(REAL)

test-ordinary-user: setup ## run the real tests of what is different without root
	@scripts/setup.sh --ordinary-user
	@scripts/test-real.sh -m "real and not slow" tests/sandbox tests/engine/test_environments.py

test-engines: setup ## run the tests of environments in each engine, as root also as an ordinary user
	@scripts/setup.sh --tests
	@scripts/test-engines.sh

test-operator: setup ## run the tests with a real API server and etcd, and with a cluster (KUBEBUILDER_ASSETS)
	@scripts/setup.sh --tests
	$(PYTHON) -m pytest -m real -rfE -n 2 --dist loadfile tests/kube tests/operator tests/jobs/kubernetes \
		--ignore $(CLUSTER)
	$(PYTHON) -m pytest -m "real or training" -rfE $(CLUSTER)

test-training: setup ## train with every framework in its environment (downloads 1 GB)
	$(PYTHON) -m pytest -m training -rfE -n 2 --dist loadgroup --ignore $(CLUSTER)

test-notebook: setup ## run notebooks in a real Jupyter, in a browser and with other kernels
	@scripts/setup.sh --notebook
	$(PYTHON) -m pytest -m notebook -rfE -n 2 --dist loadfile

test-smoke: setup ## train with PyTorch in its environment, and run a notebook in a real kernel
	$(PYTHON) -m pytest -m "training or notebook" -rfE -k "(pytorch and epochs) or test_headless_notebook" \
		tests/e2e/test_training.py tests/notebook/test_live_kernel.py

test-examples: setup ## run the examples that have no test of their own
	examples/add-a-framework/verify
	examples/checkpoints/verify
	examples/decorator/verify
	examples/operator/verify

test-install: setup ## install the wheel outside the checkout and use it, as root and as another user
	@scripts/test-install.sh

test-fresh: setup ## run `make demo`, `make test` and the installation guide in fresh minimal systems (root)
	scripts/fresh-root.sh

test-mutation: setup ## check that tests notice a sample of small errors in security-critical code (root)
	$(PYTHON) scripts/mutate.py

check: setup      ## check format, lint, types, layers, readability and generated files
	@scripts/check.sh

bench: setup      ## measure builds against the other builders on this machine, and jobs and cells
	$(PYTHON) -m benchmarks
	$(PYTHON) -m benchmarks.jobs
	$(PYTHON) -m benchmarks.kernel
	$(PYTHON) -m benchmarks.notebook
	$(PYTHON) -m benchmarks.conda
	$(PYTHON) -m benchmarks.ui

bench-up: setup   ## measure how long it takes to enter an environment, compared with Docker
	$(PYTHON) -m benchmarks.up

bench-operator: setup ## measure the operator on a real API server (KUBEBUILDER_ASSETS), compared with a plain client
	$(PYTHON) -m benchmarks.operator

bench-serving: setup ## measure the model server beside BentoML, MLServer, LitServe and KServe's SDK (from PyPI; wrk)
	$(PYTHON) -m benchmarks.serving

docs: setup       ## generate the reference pages and build the site (build/site); fails on broken links
	$(PYTHON) scripts/docs.py
	@scripts/site.sh

clean:            ## remove what `make setup` and `make docs` created
	rm -rf .venv .venv-docs build/site
