// Package generation continues many prompts at once with one model: requests, how tokens are chosen, and files of prompts.
//
//	f, err := folder.Open("model")
//	b, err := generation.Open(ctx, f, generation.Options{Context: 2048, Sequences: 32, Device: "cpu"})
//	go b.Run(ctx, requests)
//	requests <- &generation.Request{Prompt: ids, Tokens: 100, Logprobs: -1, Done: func(r *generation.Result, err error) { ... }}
//
// Requests join and leave between steps (continuous batching, as in Orca, OSDI 2022). What a request gets does not depend on
// what is beside it: logits have the bits that they would have alone (folder.Slots), and random numbers depend on the
// request's seed only.
//
// Known weaknesses: every sequence has room for the longest; what prompts have in common is read for each of them.
package generation
