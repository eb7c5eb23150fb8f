module github.com/athanor-llm/athanor

go 1.26.0

require (
	github.com/alecthomas/kong v1.17.0
	github.com/klauspost/compress v1.20.4
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/sys v0.49.0
	golang.org/x/text v0.43.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/ebitengine/purego v0.11.3
	golang.org/x/term v0.47.0
)
