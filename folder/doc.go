// Package folder opens model folders of Hugging Face's form, and adapters' folders of PEFT's, and does with them
// what needs no training run: evaluates them, generates text, chats, exports and merges.
//
//	Open(path) --> Folder.Session, Generator
//	Evaluate, Sample, OpenChat, Export, Merge
//
// Ownership. A Folder owns the open files of weights, a Generator its session and device.
//
// Invariant. Files hold a model's parameters and nothing else: a tensor that is missing, superfluous or of another
// shape is an error wherever weights are read, also by training.
//
// Where to look:
//
//	folder.go, evaluate.go    losses and gradients of a model folder
//	labels.go                 what models with labels say of texts
//	source.go, mxfp4.go       parameters from tensors of files
//	adapter.go, export.go     LoRA as PEFT folders; folders for other software
//	prune.go, layers.go       sparse weights, layer by layer
//	tokens.go                 what belongs to the tokenizer of a folder
//	generate.go, sample.go    decoding: cache, prompt, sampling
//	chat.go, finite.go        conversations; numbers that are not finite
package folder
