# Thin on purpose: what a target does is in scripts/, and what CI runs is what a person runs.
PYTHON := .venv/bin/python
# Further arguments of pytest for `make test-real`.
REAL :=
# Alone: it takes the machine's network and cgroups.
CLUSTER := tests/operator/cluster

.PHONY: setup demo test test-all test-quick test-real test-operator test-training test-notebook \
	test-mutation test-install check bench bench-up bench-operator docs clean

setup:            ## system packages (says so first), .venv, danlu itself
	@scripts/setup.sh

demo: setup       ## train and use a real classifier inside a freshly built environment
	@examples/digits/verify

test: test-quick test-real ## all tests this machine can run; what it cannot is said

test-all: test test-operator test-training test-notebook test-mutation ## and what is slow and rarely breaks
	$(PYTHON) -m pytest -m "real and slow" -rfE
	@[ "$$(id -u)" != 0 ] || scripts/fresh-root.sh

test-quick: setup ## no network, no containers, no root
	$(PYTHON) -m pytest -n auto

test-real: setup  ## containers, networks, whole environments
	@scripts/setup.sh --tests
	$(PYTHON) -m pytest -m "real and not slow" -rfE -n 3 --dist loadfile --ignore $(CLUSTER) $(REAL)
	$(PYTHON) -m pytest -m real -rfE $(CLUSTER)

test-operator: setup ## of those, what needs Kubernetes' own programs (KUBEBUILDER_ASSETS)
	@scripts/setup.sh --tests
	$(PYTHON) -m pytest -m real -rfE -n 2 --dist loadfile tests/kube tests/operator tests/jobs/kubernetes \
		--ignore $(CLUSTER)
	$(PYTHON) -m pytest -m "real or training" -rfE $(CLUSTER)

test-training: setup ## real training with every framework, in environments built for it (1 GB)
	$(PYTHON) -m pytest -m training -rfE -n 2 --dist loadgroup --ignore $(CLUSTER)

test-notebook: setup ## notebooks in a real Jupyter, in a browser, beside other kernels
	@scripts/setup.sh --notebook
	$(PYTHON) -m pytest -m notebook -rfE -n 2 --dist loadfile

test-install: setup ## the wheel in an empty environment outside the checkout, as root and as another user
	@scripts/test-install.sh

test-mutation: setup ## a sample of small errors in the code that reads untrusted input: do tests fail? (root)
	$(PYTHON) scripts/mutate.py

check: setup      ## format, lint, types, layers, generated files
	@scripts/check.sh

bench: setup      ## DESIGN's table against whichever peers this machine has, and what jobs and cells cost
	$(PYTHON) -m benchmarks
	$(PYTHON) -m benchmarks.jobs
	$(PYTHON) -m benchmarks.kernel
	$(PYTHON) -m benchmarks.notebook
	$(PYTHON) -m benchmarks.conda

bench-up: setup   ## what entering an environment costs, beside Docker
	$(PYTHON) -m benchmarks.up

bench-operator: setup ## the operator on a real API server (KUBEBUILDER_ASSETS), beside a bare client
	$(PYTHON) -m benchmarks.operator

docs: setup       ## the generated reference pages, then the site in build/site; fails on a broken link
	$(PYTHON) scripts/docs.py
	@scripts/site.sh

clean:            ## what setup made here
	rm -rf .venv .venv-docs build/site
