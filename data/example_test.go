package data_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/data"
)

// From a file to batches: what a training run does.
func Example() {
	dir, err := os.MkdirTemp("", "data")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := strings.Repeat("Every token is predicted once in an epoch.\n", 200)
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o666); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	corpus, err := data.OpenCorpus(filepath.Join(dir, "**", "*.txt"))
	if err != nil {
		log.Fatal(err)
	}
	tokenizer, err := data.OpenTokenizer(ctx, "gpt2", corpus, data.Options{})
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := data.Tokenize(ctx, corpus, tokenizer, dir, data.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer tokens.Close()
	fmt.Println(tokens.Stats())

	const sequence, rows = 16, 4
	train, validation, err := tokens.Split(0.01, sequence)
	if err != nil {
		log.Fatal(err)
	}
	windows, err := tokens.Windows(train, sequence)
	if err != nil {
		log.Fatal(err)
	}
	sampler, err := data.NewSampler(windows, 1, rows)
	if err != nil {
		log.Fatal(err)
	}
	batch := make([]int32, rows*(sequence+1))
	sampler.Fill(batch, rows)
	fmt.Println(train.Len(), validation.Len(), windows.Count(), sampler.Cursor())
	fmt.Printf("%.3f nats\n", data.Entropy(data.Stretch{Tokens: tokens, Range: train}))
	// Output:
	// text: 1 files, 1 documents, 8600 bytes
	// 1981 20 123 {0 4}
	// 2.303 nats
}
