package config

import (
	"fmt"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// elsewhere maps keys of other training programs to what they are here.
var elsewhere = []struct{ theirs, ours string }{
	{"num_epochs", "max_epochs"}, {"num_train_epochs", "max_epochs"}, {"epochs", "max_epochs"},
	{"num_steps", "max_steps"}, {"max_iters", "max_steps"}, {"iterations", "max_steps"},
	{"batch_size", "global_batch, the sequences per optimizer step; the planner chooses micro-batches"},
	{"per_device_train_batch_size", "global_batch, the sequences per optimizer step; the planner chooses micro-batches"},
	{"micro_batch_size", "global_batch, the sequences per optimizer step; the planner chooses micro-batches"},
	{"gradient_accumulation_steps", "global_batch, the sequences per optimizer step; the planner chooses micro-batches"},
	{"lr", "learning_rate"}, {"warmup_ratio", "warmup_steps, by default a twentieth of max_steps"}, {"lr_scheduler_type", "schedule"}, {"early_stopping_patience", "early_stop"}, {"num_decay_steps", "decay_steps"},
	{"max_seq_length", "sequence_length"}, {"max_length", "sequence_length"}, {"block_size", "sequence_length"}, {"cutoff_len", "sequence_length"},
	{"max_grad_norm", "gradient_clipping"}, {"grad_clip", "gradient_clipping"}, {"adam_beta1", "beta1"}, {"adam_beta2", "beta2"}, {"adam_epsilon", "epsilon"}, {"optim", "optimizer"},
	{"bf16", "precision: bf16"}, {"fp16", "precision: bf16"}, {"dtype", "precision"}, {"output_dir", "out"},
	{"save_steps", "save_every"}, {"eval_steps", "eval_every"}, {"save_total_limit", "keep_checkpoints"}, {"resume_from_checkpoint", "resume"},
	{"dataset", "data"}, {"datasets", "data"}, {"train_file", "data"}, {"train_files", "data"},
	{"eval_dataset", "validation"}, {"validation_file", "validation"}, {"val_files", "validation"}, {"eval_file", "validation"}, {"test_datasets", "validation"},
	{"val_data", "validation"}, {"val_size", "validation_fraction"}, {"val_set_size", "validation_fraction"},
	{"interleave_probs", "data, where {files: ..., times: 2} is read twice as often"}, {"data_weights", "data, where {files: ..., times: 2} is read twice as often"},
	{"gpu", "hardware.name, for a card that is not here"}, {"gpus", "ranks"}, {"num_gpus", "ranks"}, {"nproc_per_node", "ranks"},
	{"model_name_or_path", "model"}, {"base_model", "model"},
	{"load_in_4bit", "quantize: nf4"}, {"lora_rank", "lora.rank"}, {"lora_r", "lora.rank"}, {"lora_alpha", "lora.alpha"}, {"lora_dropout", "lora.dropout"}, {"neftune_noise_alpha", "neftune_alpha"}, {"packing", "documents: whole"},
	{"gradient_checkpointing", "plan.recompute, or leave it to the planner what is recomputed"}, {"cpu_offload", "limits.device, which determines what the planner offloads"},
}

// hint returns a hint at what an unknown key may mean: our key if another program uses that name, else the
// nearest of some names.
func hint(key string, names []string) string {
	for _, e := range elsewhere {
		if e.theirs == key {
			return fmt.Sprintf("; hint: use %s", e.ours)
		}
	}
	return suggest.Hint(key, names)
}
