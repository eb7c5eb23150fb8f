// Package api serves a model over HTTP by OpenAI's API, so that software made for that API works with it:
//
//	POST /v1/completions        texts continued; echo, logprobs
//	POST /v1/chat/completions   conversations answered, by the model's chat template
//	GET  /v1/models             the one model
//	GET  /health                whether it serves
//
// Both kinds of requests may stream (server-sent events), and all that are under way share the batches of package generation. What
// a request asks for that is not built is refused by name, rather than ignored.
//
// Everything is bounded: bodies, prompts per request, and requests under way or waiting, beyond which the answer is 429. A
// client that leaves, or does not read, ends its request.
package api
