// Command gen writes the generated files of package simd into the current directory.
package main

import (
	"log"
	"os"

	"github.com/athanor-llm/athanor/kernel/simd/internal/emit"
)

func main() {
	for name, text := range emit.Files() {
		if err := os.WriteFile(name, text, 0o666); err != nil {
			log.Fatal(err)
		}
	}
}
