# What people type. The product needs only Go; nothing here does either.
export CGO_ENABLED = 0

build:            ## the binaries
	go build -o . ./cmd/...
fast:             ## something of each package, in a minute
	go test -short ./...
test:             ## each law, on a fixed choice of cases; CI also builds, vets and fetches NVRTC
	go test -p $$(($$(nproc)+1)) -timeout 25m ./...
# Drawn anew each time: the seed is printed, and ATHANOR_SEED=n repeats a run.
all: export ATHANOR_TESTS = all
all: export ATHANOR_SEED := $(or $(ATHANOR_SEED),$(shell date +%s))
all:              ## every case that the tests have: run it before a release
	@echo ATHANOR_SEED=$$ATHANOR_SEED
	go test -timeout 120m ./...
staticcheck:      ## what it names is mended, or explained where it is
	go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
race:             ## data races; needs a C compiler
	CGO_ENABLED=1 go test -race -short ./data/... ./exec ./device ./device/cpu ./device/link ./device/null ./device/remote ./checkpoint/... ./train ./folder
docs:             ## every command that the documents show, run or parsed: some minutes
	tools/docs-check.sh
quickstart:       ## train a small model on Go's own source
	go run ./cmd/athanor train examples/quickstart.yaml
bench:            ## kernels beside the machine's measured peaks
	go test -run '^$$' -bench . ./kernel/...
generate:         ## files from their generators
	go generate ./graph ./kernel/...
# The compiler reads it wherever the command is built; searches for many ranks take a twentieth less with it.
profile:          ## which of a search's calls are hot, for the compiler: after large changes of the search
	go test -run '^$$' -bench Search -benchtime 1x -cpuprofile cmd/athanor/default.pgo -o /dev/null ./search
# Until Go 1.27 a race in its fuzzing engine may end this with "context deadline exceeded" and no input: golang/go#75804.
# Inputs are kept as they are found: to minimise one of 14 kB takes a minute, in which nothing is tried.
fuzz:             ## each parser for half a minute
	for p in config data data/bpe data/jinja data/parquet checkpoint/safetensors program verify hardware; do \
	  for f in $$(go test -list '^Fuzz' ./$$p | grep ^Fuzz); do go test -run '^$$' -fuzz "^$$f$$" -fuzztime 30s -fuzzminimizetime 1x ./$$p; done; done
.PHONY: build staticcheck race docs fast test all quickstart bench profile generate fuzz
