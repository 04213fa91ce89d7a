# Thin on purpose: what a target does is in scripts/, and what CI runs is what a person runs.
PYTHON := .venv/bin/python
# Alone: it takes the machine's network and cgroups.
CLUSTER := tests/operator/cluster

.PHONY: setup demo test test-quick test-real test-operator test-training test-notebook check bench \
	bench-operator docs clean

setup:            ## system packages (says so first), .venv, danlu itself
	@scripts/setup.sh

demo: setup       ## train and use a real classifier inside a freshly built environment
	@examples/digits/verify

test: test-quick test-real ## all tests this machine can run; what it cannot is said

test-quick: setup ## no network, no containers, no root
	$(PYTHON) -m pytest -n auto

test-real: setup  ## containers, networks, whole environments
	@scripts/setup.sh --tests
	$(PYTHON) -m pytest -m real -rfEs -n 2 --dist loadfile --ignore $(CLUSTER)
	$(PYTHON) -m pytest -m real -rfEs $(CLUSTER)

test-operator: setup ## of those, what needs Kubernetes' own programs (KUBEBUILDER_ASSETS)
	@scripts/setup.sh --tests
	$(PYTHON) -m pytest -m real -rfEs -n 2 --dist loadfile tests/kube tests/operator tests/jobs/kubernetes \
		--ignore $(CLUSTER)
	$(PYTHON) -m pytest -m "real or training" -rfEs $(CLUSTER)

test-training: setup ## real training with every framework, in environments built for it (1 GB)
	$(PYTHON) -m pytest -m training -rfEs --ignore $(CLUSTER)

test-notebook: setup ## notebooks in a real Jupyter, in a browser, beside other kernels
	@scripts/setup.sh --notebook
	$(PYTHON) -m pytest -m notebook -rfEs -n 2 --dist loadfile

check: setup      ## format, lint, types, layers, generated files
	@scripts/check.sh

bench: setup      ## DESIGN's table against whichever peers this machine has, and what jobs and cells cost
	$(PYTHON) -m benchmarks
	$(PYTHON) -m benchmarks.jobs
	$(PYTHON) -m benchmarks.kernel
	$(PYTHON) -m benchmarks.notebook

bench-operator: setup ## the operator on a real API server (KUBEBUILDER_ASSETS), beside a bare client
	$(PYTHON) -m benchmarks.operator

docs: setup       ## the generated reference pages
	$(PYTHON) scripts/docs.py

clean:            ## what setup made here
	rm -rf .venv
