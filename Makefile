# What people type. The product needs only Go; nothing here does either.
export CGO_ENABLED = 0

build:            ## the binary
	go build -o athanor ./cmd/athanor
test:             ## the tests; CI also builds, vets and fetches NVRTC
	go test -timeout 25m ./...
quickstart:       ## train a small model on Go's own source
	go run ./cmd/athanor train examples/quickstart.yaml
bench:            ## kernels beside the machine's measured peaks
	go test -run '^$$' -bench . ./kernel/...
generate:         ## assembly from its generators
	go generate ./kernel/...
# Until Go 1.27 a race in its fuzzing engine may end this with "context deadline exceeded" and no input: golang/go#75804.
fuzz:             ## each parser for half a minute
	for p in config data data/bpe data/jinja data/parquet checkpoint/safetensors program verify hardware; do \
	  for f in $$(go test -list '^Fuzz' ./$$p | grep ^Fuzz); do go test -run '^$$' -fuzz "^$$f$$" -fuzztime 30s ./$$p; done; done
.PHONY: build test quickstart bench generate fuzz
