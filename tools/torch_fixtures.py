#!/usr/bin/env python3
"""Writes testdata/torch: tiny random Hugging Face folders and what PyTorch computes on them.

    python tools/torch_fixtures.py [OUT] [NAME ...]

Approach: for each case below, `transformers` builds the model from its config, every parameter (norms and biases
included) is set to noise large enough to matter, and PyTorch computes, in fp32 with eager attention on one fixed batch:
the logits, the mean next-token cross entropy, all its gradients, and ten AdamW steps. The ten steps are also run in
float64, which shows how much of a difference is rounding (`losses64`; a few places inside transformers, such as RMS norm
and the rotary tables, stay fp32 there). Everything is seeded: a second run writes the same bytes.

Needs torch, transformers, peft and bitsandbytes.

Known weakness: the numbers depend on the versions of torch and transformers (written to README.md) in the last digits.
"""
import copy
import fnmatch
import json
import math
import pathlib
import sys
import zlib

import bitsandbytes
import peft
import torch
import transformers
from safetensors.torch import save_file

BATCH, LENGTH, STEPS = 4, 33, 10
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP = 0.1, 1.0

GPT2 = dict(n_layer=2, n_embd=48, n_head=4, n_positions=64, vocab_size=211, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
LLAMA = dict(num_hidden_layers=2, hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
             intermediate_size=104, vocab_size=211, max_position_embeddings=64, attention_dropout=0.0,
             bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
# The variants are narrower, because the fixtures live in the repository.
NARROW = LLAMA | dict(hidden_size=32, num_attention_heads=4, intermediate_size=56, vocab_size=97)

NEOX = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=56, vocab_size=97, max_position_embeddings=64,
            rotary_pct=0.5, hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0)

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.2, 2.5, 5.0, 9.0])
LONGROPE_16 = LONGROPE | dict(short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 2.0], long_factor=[1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 20.0, 32.0])

CASES = {
    "gpt2-tiny": ("GPT2", GPT2),
    "gpt2-untied": ("GPT2", GPT2 | dict(n_embd=32, vocab_size=97, tie_word_embeddings=False)),
    "llama-tiny": ("Llama", LLAMA),
    "llama-tied": ("Llama", NARROW | dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "llama3-rope": ("Llama", NARROW | dict(head_dim=16, num_key_value_heads=1, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64), max_position_embeddings=512)),
    "qwen2-tiny": ("Qwen2", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        tie_word_embeddings=True, rope_theta=1000000.0, use_sliding_window=False)),
    "mistral-tiny": ("Mistral", NARROW | dict(sliding_window=12)),
    "opt-tiny": ("OPT", dict(num_hidden_layers=2, hidden_size=32, ffn_dim=128, num_attention_heads=4, vocab_size=97,
                             max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0,
                             layerdrop=0.0, activation_function="relu", do_layer_norm_before=True, pad_token_id=1,
                             bos_token_id=2, eos_token_id=2)),
    "qwen3-tiny": ("Qwen3", NARROW | dict(head_dim=12, tie_word_embeddings=True, rope_theta=1000000.0,
                                          use_sliding_window=True, sliding_window=12, max_window_layers=1)),
    "gemma3-tiny": ("Gemma3", NARROW | dict(num_key_value_heads=1, head_dim=12, tie_word_embeddings=True, pad_token_id=None,
                                            sliding_window=9, sliding_window_pattern=2, query_pre_attn_scalar=20)),
    "olmo2-tiny": ("Olmo2", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(pad_token_id=None, rope_theta=500000.0)),
    "neox-tiny": ("GPTNeoX", NEOX),
    "neox-serial": ("GPTNeoX", NEOX | dict(use_parallel_residual=False, attention_bias=False, rotary_pct=0.25, hidden_act="gelu_new")),
    "phi3-tiny": ("Phi3", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(pad_token_id=None, sliding_window=12, partial_rotary_factor=0.5)),
    "smollm3-tiny": ("SmolLM3", NARROW | dict(pad_token_id=None, head_dim=12, no_rope_layer_interval=2, tie_word_embeddings=True)),
    # Rows of whole blocks of 64, which bitsandbytes cuts from the flat matrix.
    "llama-nf4": ("Llama", NARROW | dict(hidden_size=64, head_dim=16, num_key_value_heads=2, intermediate_size=64)),
    "qwen2-yarn": ("Qwen2", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=8.0))),
    "phi3-longrope": ("Phi3", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        pad_token_id=None, original_max_position_embeddings=16, rope_parameters=LONGROPE | dict(rope_theta=10000.0))),
    "granite-tiny": ("Granite", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-2,
        embedding_multiplier=6.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=1.7)),
    "starcoder2-tiny": ("Starcoder2", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        tie_word_embeddings=True, sliding_window=12, residual_dropout=0.0, embedding_dropout=0.0)),
    "stablelm-tiny": ("StableLm", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(use_qkv_bias=True, partial_rotary_factor=0.5)),
    "stablelm-parallel": ("StableLm", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        use_parallel_residual=True, num_hidden_layers=1, partial_rotary_factor=0.25)),
    "phi-tiny": ("Phi", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(partial_rotary_factor=0.5, resid_pdrop=0.0, embd_pdrop=0.0)),
    "olmo3-tiny": ("Olmo3", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        pad_token_id=None, eos_token_id=0, sliding_window=9, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(full_attention=YARN | dict(rope_theta=5e5, factor=8.0), sliding_attention=dict(rope_type="default", rope_theta=2e4)))),
    "mixtral-tiny": ("Mixtral", NARROW | dict(head_dim=12, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, sliding_window=12)),
    "qwen3-moe-tiny": ("Qwen3Moe", NARROW | dict(head_dim=12, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, rope_theta=1000000.0)),
    "olmoe-tiny": ("Olmoe", {k: v for k, v in NARROW.items() if k != "head_dim"} | dict(
        intermediate_size=16, num_experts=5, num_experts_per_tok=2, pad_token_id=None)),
    # A limit that many gates and ups reach.
    "gpt-oss-tiny": ("GptOss", NARROW | dict(head_dim=12, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=9, pad_token_id=None,
                                             swiglu_limit=0.9, rope_parameters=YARN | dict(truncate=False))),
}

# Models that also see: what their text part and the rest have. Smaller still, because only names and config.json are new.
TEXT = dict(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=24, vocab_size=61,
            max_position_embeddings=64, attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=None)
SQUARE = {k: v for k, v in TEXT.items() if k != "head_dim"}
SEES = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
SEES_QWEN = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=4, out_hidden_size=16)
AXES = dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 1, 1])

SMALL = TEXT | dict(head_dim=12)
# Heads of keys and values differ in number and size.
DELTA = TEXT | dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
                    layer_types=["linear_attention", "full_attention"])
DELTA_AXES = AXES | dict(partial_rotary_factor=0.5, mrope_interleaved=True)
DELTA_EXPERTS = dict(moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=6, num_experts_per_tok=3)
CASES |= {
    "gemma-tiny": ("Gemma", SMALL | dict(tie_word_embeddings=True)),
    "seed-oss-tiny": ("SeedOss", SMALL | dict(attention_out_bias=True, mlp_bias=True, residual_dropout=0.0)),
    "exaone4-tiny": ("Exaone4", SQUARE | dict(sliding_window=9, sliding_window_pattern=2)),
    "cwm-tiny": ("Cwm", SMALL | dict(sliding_window=9, rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                           original_max_position_embeddings=16))),
    "ernie-moe-tiny": ("Ernie4_5_Moe", SQUARE | dict(moe_intermediate_size=12, moe_num_experts=5, moe_k=2, moe_num_shared_experts=2, tie_word_embeddings=True)),
    # Groups of two experts, of which two of three are chosen from.
    "glm4-moe-tiny": ("Glm4Moe", SMALL | dict(moe_intermediate_size=12, n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2, n_shared_experts=2, first_k_dense_replace=1,
                                              routed_scaling_factor=1.6, use_qk_norm=True, attention_bias=True, num_mtp_layers=0)),
    "minimax-m2-tiny": ("MiniMaxM2", SMALL | dict(intermediate_size=12, num_local_experts=5, num_experts_per_tok=2, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    # Caps that many scores and logits come near.
    "gemma2-tiny": ("Gemma2", SMALL | dict(sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=0.9, final_logit_softcapping=1.5)),
    "arcee-tiny": ("Arcee", SQUARE | dict(mlp_bias=True)),
    "hunyuan-tiny": ("HunYuanDenseV1", SMALL | dict(rope_parameters=dict(rope_type="dynamic", alpha=50.0, rope_theta=1e4, factor=1.0))),
    "qwen2-moe-tiny": ("Qwen2Moe", SQUARE | dict(moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=6, num_experts_per_tok=3)),
    "glm-tiny": ("Glm", SMALL | dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=2/3))),
    "glm4-tiny": ("Glm4", SMALL | dict(head_dim=8, attention_bias=False, rms_norm_eps=1e-5)),
    "ernie-tiny": ("Ernie4_5", SMALL | dict(use_bias=True, tie_word_embeddings=True)),
    "ministral3-tiny": ("Ministral3", SMALL | dict(rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
}

WRAPPED = {
    "gemma3-sees": ("Gemma3", dict(text_config=TEXT | dict(sliding_window=9, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20),
                                   vision_config=SEES, mm_tokens_per_image=1, image_token_index=60, boi_token_index=59, eoi_token_index=58)),
    "mistral3-sees": ("Mistral3", dict(text_config=TEXT | dict(model_type="ministral3", rope_parameters=YARN | dict(llama_4_scaling_beta=0.1)),
                                       vision_config=SEES | dict(model_type="pixtral", head_dim=4), image_token_index=60, tie_word_embeddings=False)),
    "qwen2-vl-sees": ("Qwen2VL", dict(text_config=SQUARE | dict(rope_parameters=dict(AXES)), tie_word_embeddings=True,
                                      vision_config=dict(depth=1, embed_dim=8, hidden_size=16, mlp_ratio=1, num_heads=2, patch_size=4))),
    "qwen25-vl-sees": ("Qwen2_5_VL", dict(text_config=SQUARE | dict(rope_parameters=dict(AXES)), vision_config=SEES_QWEN | dict(fullatt_block_indexes=[0]))),
    "qwen3-vl-sees": ("Qwen3VL", dict(text_config=TEXT | dict(rope_parameters=AXES | dict(mrope_interleaved=True)),
                                      vision_config=SEES_QWEN | dict(num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "llava-sees": ("Llava", dict(text_config=TEXT | dict(model_type="llama"), vision_config=SEES | dict(model_type="clip_vision_model", projection_dim=8),
                                 image_token_index=60)),
    "llava-next-sees": ("LlavaNext", dict(text_config=TEXT | dict(model_type="mistral", sliding_window=9), image_token_index=60,
                                          vision_config=SEES | dict(model_type="clip_vision_model", projection_dim=8))),
    "llava-onevision-sees": ("LlavaOnevision", dict(text_config=SQUARE | dict(model_type="qwen2", tie_word_embeddings=True), image_token_index=60, video_token_index=59,
                                                    vision_config=SEES | dict(model_type="siglip_vision_model"))),
    "internvl-sees": ("InternVL", dict(text_config=TEXT | dict(model_type="qwen3"), image_token_id=60, tie_word_embeddings=False,
                                       vision_config=SEES | dict(image_size=[8, 8], patch_size=[4, 4]))),
    "idefics3-sees": ("Idefics3", dict(text_config=TEXT | dict(model_type="llama"), vision_config=SEES, image_token_id=60)),
    "smolvlm-sees": ("SmolVLM", dict(text_config=TEXT | dict(model_type="llama"), vision_config=SEES, image_token_id=60)),
}
CASES |= WRAPPED
CASES |= {
    "qwen35-tiny": ("Qwen3_5", DELTA),
    "qwen35-moe-tiny": ("Qwen3_5Moe", DELTA | DELTA_EXPERTS),
    "qwen3-next-tiny": ("Qwen3Next", DELTA | DELTA_EXPERTS),
    "qwen35-vl-sees": ("Qwen3_5", dict(text_config=DELTA | dict(rope_parameters=DELTA_AXES), vision_config=SEES_QWEN | dict(num_position_embeddings=16))),
    "qwen35-moe-vl-sees": ("Qwen3_5Moe", dict(text_config=DELTA | DELTA_EXPERTS | dict(rope_parameters=DELTA_AXES),
                                              vision_config=SEES_QWEN | dict(num_position_embeddings=16))),
}
# In layers without a window heads are larger, keys are values, and a quarter of the pairs rotates.
GEMMA4 = TEXT | dict(pad_token_id=0, num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=9, layer_types=["sliding_attention", "full_attention"],
                     hidden_size_per_layer_input=0, vocab_size_per_layer_input=61, final_logit_softcapping=1.5)
# Layers that read embeddings of their own, and the last two the keys and values of the first or second, with wider feed-forwards. Widths are such that
# no norm divides by nearly nothing: rounding would grow to 1e-3 in ten steps.
GEMMA4_SMALL = GEMMA4 | dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, attention_k_eq_v=False, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=12, rms_norm_eps=1e-2)
# No token of a fixture stands for an image: transformers would replace it.
BEYOND = dict(image_token_id=64, video_token_id=65, audio_token_id=66)
CASES |= {
    "gemma4-tiny": ("Gemma4", GEMMA4),
    "gemma4-moe-tiny": ("Gemma4", GEMMA4 | dict(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12)),
    "gemma4-small-tiny": ("Gemma4", GEMMA4_SMALL),
    "gemma4-small-sees": ("Gemma4", dict(text_config=GEMMA4_SMALL, vision_config=SEES | dict(head_dim=4, position_embedding_size=16, patch_size=4, pooling_kernel_size=1), **BEYOND)),
    "gemma4-sees": ("Gemma4", dict(text_config=GEMMA4 | dict(attention_k_eq_v=False), vision_config=SEES | dict(head_dim=4, position_embedding_size=16, patch_size=4, pooling_kernel_size=1),
                                   **BEYOND)),
    "gemma4-unified-sees": ("Gemma4Unified", dict(text_config={k: v for k, v in GEMMA4.items() if "per_layer" not in k},
                                                  vision_config=dict(patch_size=4, pooling_kernel_size=1, mm_embed_dim=8, mm_posemb_size=4, output_proj_dims=16),
                                                  audio_config=dict(audio_embed_dim=8), **BEYOND)),
}
# Values narrower than keys, and as wide.
LATENT = SQUARE | dict(num_key_value_heads=2, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, moe_intermediate_size=12, n_routed_experts=6,
                       num_experts_per_tok=3, first_k_dense_replace=1)
CASES |= {
    "deepseek2-tiny": ("DeepseekV2", LATENT | dict(q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=1.3, rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.707))),
    "deepseek3-tiny": ("DeepseekV3", LATENT | dict(q_lora_rank=10, n_shared_experts=1, n_group=3, topk_group=2, routed_scaling_factor=1.6, num_mtp_layers=0,
                                                   rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.8))),
    "glm4-lite-tiny": ("Glm4MoeLite", {k: v for k, v in LATENT.items() if k != "first_k_dense_replace"} | dict(q_lora_rank=10, v_head_dim=10, n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.8, rms_norm_eps=1e-4)),
}
CASES |= {
    "lfm2-tiny": ("Lfm2", SQUARE | dict(intermediate_size=30, block_multiple_of=8, conv_L_cache=3, tie_word_embeddings=True, layer_types=["conv", "full_attention"])),
    "lfm2-moe-tiny": ("Lfm2Moe", SQUARE | dict(moe_intermediate_size=12, num_experts=5, num_experts_per_tok=2, num_dense_layers=1, routed_scaling_factor=1.6,
                                               tie_word_embeddings=True, layer_types=["full_attention", "conv"])),
    "cohere-tiny": ("Cohere", SQUARE | dict(attention_bias=True, logit_scale=0.3, tie_word_embeddings=True)),
    "apertus-tiny": ("Apertus", SQUARE | dict(rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "cohere2-tiny": ("Cohere2", SQUARE | dict(sliding_window=9, sliding_window_pattern=2, logit_scale=0.25, tie_word_embeddings=True)),
}
# Scans of Mamba2, in groups.
FALCON = dict(mamba_d_ssm=24, mamba_n_groups=2, embedding_multiplier=2.0, lm_head_multiplier=0.8, attention_in_multiplier=1.2, key_multiplier=0.8, attention_out_multiplier=0.7,
              ssm_in_multiplier=1.1, ssm_multipliers=[0.9, 1.1, 0.8, 1.2, 1.3], ssm_out_multiplier=0.6, mlp_multipliers=[1.5, 0.5])
SCANS = dict(mamba_n_heads=4, mamba_d_state=5, mamba_d_conv=3)
CASES |= {
    "granite-h-tiny": ("GraniteMoeHybrid", {k: v for k, v in SQUARE.items() if k != "intermediate_size"} | SCANS | dict(shared_intermediate_size=44, num_local_experts=0, mamba_n_groups=1, mamba_proj_bias=True,
                       layer_types=["linear_attention", "full_attention"], embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0, tie_word_embeddings=True)),
    "granite-h-moe-tiny": ("GraniteMoeHybrid", SQUARE | SCANS | dict(intermediate_size=12, shared_intermediate_size=20, num_local_experts=5, num_experts_per_tok=2, mamba_n_groups=1,
                           layer_types=["linear_attention", "full_attention"], embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0)),
    "granite-moe-tiny": ("GraniteMoe", SQUARE | dict(intermediate_size=12, num_local_experts=5, num_experts_per_tok=2, tie_word_embeddings=True,
                         embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0)),
    "nemotron-h-tiny": ("NemotronH", TEXT | dict(ssm_state_size=5, mamba_num_heads=4, mamba_head_dim=6, n_groups=2, conv_kernel=3, use_bias=True,
                                                 layers_block_type=["linear_attention", "mlp", "full_attention"])),
    "bamba-tiny": ("Bamba", SQUARE | SCANS | dict(mamba_n_groups=2, attn_layer_indices=[1], tie_word_embeddings=True, rms_norm_eps=1e-2)),
    "falcon-h1-tiny": ("FalconH1", SQUARE | SCANS | FALCON | dict(num_hidden_layers=1, mamba_rms_norm=False)),
    "falcon-h1-normed-tiny": ("FalconH1", SQUARE | SCANS | FALCON | dict(num_hidden_layers=1, mamba_rms_norm=True, mamba_norm_before_gate=True, tie_word_embeddings=True)),
}
# Saved with the names that transformers has in memory instead of those of published files.
IN_MEMORY = {"internvl-sees", "qwen2-vl-sees"}
# Saved with the keys of text_config beside the others, as transformers 4.45 wrote them.
FLAT_CONFIG = {"qwen2-vl-sees"}

# Rotary tables alone: family, what its config adds, sequence length. Heads have 16 columns.
ROPE = {
    "linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0)), 40),
    "llama3": ("Llama", dict(rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                  original_max_position_embeddings=256)), 40),
    "yarn": ("Qwen2", dict(num_key_value_heads=2, rope_parameters=YARN), 40),
    "yarn mscale": ("Llama", dict(rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.7)), 40),
    "yarn one mscale": ("Llama", dict(rope_parameters=YARN | dict(mscale=0.5)), 40),
    "yarn attention": ("Qwen3", dict(num_key_value_heads=2, head_dim=16, rope_parameters=YARN | dict(attention_factor=1.3, mscale=1.0, mscale_all_dim=0.7)), 40),
    "yarn betas": ("Llama", dict(rope_parameters=YARN | dict(beta_fast=3.5, beta_slow=0.25)), 40),
    "yarn unrounded": ("Llama", dict(rope_parameters=YARN | dict(beta_fast=3.5, truncate=False)), 40),
    "yarn one pair": ("Llama", dict(rope_parameters=YARN | dict(beta_fast=1.0001, original_max_position_embeddings=6)), 40),
    "yarn, a part": ("GPTNeoX", dict(rope_parameters=YARN | dict(partial_rotary_factor=0.5)), 40),
    "yarn, full attention": ("Gemma3", dict(num_key_value_heads=2, head_dim=16, layer_types=["full_attention"], rope_parameters=dict(
        full_attention=YARN, sliding_attention=dict(rope_type="default", rope_theta=1e4))), 40),
    "longrope short": ("Llama", dict(max_position_embeddings=512, rope_parameters=LONGROPE_16 | dict(original_max_position_embeddings=40)), 40),
    "longrope long": ("Llama", dict(max_position_embeddings=512, rope_parameters=LONGROPE_16 | dict(original_max_position_embeddings=39)), 40),
    "longrope factor": ("Llama", dict(rope_parameters=LONGROPE_16 | dict(original_max_position_embeddings=20, factor=7.0)), 40),
    "longrope attention": ("Llama", dict(rope_parameters=LONGROPE_16 | dict(original_max_position_embeddings=20, attention_factor=1.1)), 40),
    "longrope, a part": ("Phi3", dict(max_position_embeddings=512, original_max_position_embeddings=30, rope_parameters=LONGROPE | dict(partial_rotary_factor=0.5)), 40),
}

# Patterns of parameters that are not trained, for a few models.
FROZEN = {
    "gpt2-tiny": [["transformer.wte.weight"], ["transformer.w?e.weight", "transformer.h.0.*"], ["*.weight"]],
    "llama-tiny": [["*.mlp.*"], ["model.*"], ["model.embed_tokens.weight", "model.layers.0.*"]],
    "gemma3-tiny": [["*norm*"], ["model.layers.0.*", "*.q_proj.weight", "*.post_attention_layernorm.weight"]],
    "gpt-oss-tiny": [["*.sinks", "*.router.*"], ["*_bias", "*.bias", "*.layers.0.mlp.experts.down_proj"], ["*.experts.*", "*.k_proj.*"]],
    "opt-tiny": [["*embed*", "*.layers.[0-9].fc?.*", "*.q_proj.weight"]],
}

# Adapters of Hugging Face's peft, for a few models.
LORA = {
    "gpt2-tiny": dict(r=4, lora_alpha=4, target_modules=["c_attn", "c_proj", "c_fc"]),
    "llama-tiny": dict(r=3, lora_alpha=3, target_modules=["q_proj", "v_proj", "down_proj"]),
    "phi3-tiny": dict(r=3, lora_alpha=3, target_modules=["qkv_proj", "gate_up_proj"]),
    "neox-tiny": dict(r=2, lora_alpha=2, target_modules=["query_key_value", "dense_4h_to_h"]),
    "olmo2-tiny": dict(r=2, lora_alpha=2, target_modules=["q_proj", "o_proj"]),
    "qwen3-tiny": dict(r=2, lora_alpha=2, target_modules=["q_proj", "v_proj", "up_proj"]),
    "mistral-tiny": dict(r=3, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "o_proj", "gate_proj", "down_proj"]),
    "qwen2-tiny": dict(r=2, lora_alpha=6, target_modules=["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj"]),
    "phi-tiny": dict(r=2, lora_alpha=4, target_modules=["v_proj", "dense", "fc1"]),
    "granite-tiny": dict(r=2, lora_alpha=3, target_modules=["q_proj", "o_proj", "down_proj"]),
}

LORA["qwen3-moe-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "o_proj"])
# Those of experts are parameters of a module, of both or of one of which there may be adapters.
LORA["olmoe-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=["gate_up_proj", "down_proj"])
LORA["mixtral-tiny"] = dict(r=3, lora_alpha=3, target_modules=["v_proj"], target_parameters=["gate_up_proj"])
LORA["gpt-oss-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"], target_parameters=["gate_up_proj", "down_proj"])
LORA["gemma3-sees"] = dict(r=2, lora_alpha=3, target_modules=r"model\.language_model\.(.*\.)?(q_proj|down_proj)")
LORA["gemma4-small-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "per_layer_input_gate", "per_layer_projection", "down_proj"])
LORA["gemma4-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "o_proj", "up_proj"])
LORA["deepseek3-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"])
LORA["qwen2-moe-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "shared_expert.up_proj", "shared_expert.down_proj"])
LORA["glm-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "gate_up_proj"])
LORA["lfm2-tiny"] = dict(r=2, lora_alpha=3, target_modules=["in_proj", "q_proj", "out_proj", "w2"])
LORA["nemotron-h-tiny"] = dict(r=2, lora_alpha=3, target_modules=["in_proj", "q_proj", "up_proj"])
LORA["granite-h-tiny"] = dict(r=2, lora_alpha=3, target_modules=["in_proj", "q_proj", "out_proj", "input_linear"])
LORA["granite-moe-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=["gate_up_proj", "down_proj"])
LORA["granite-h-moe-tiny"] = dict(r=2, lora_alpha=3, target_modules=["in_proj", "q_proj", "input_linear", "output_linear"])
LORA["cohere-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "down_proj"])
LORA["apertus-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "up_proj"])
# With magnitudes; weights with biases and without, and with columns that files have in another order.
LORA["llama-tied"] = dict(r=2, lora_alpha=3, use_dora=True, target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"])
LORA["seed-oss-tiny"] = dict(r=2, lora_alpha=3, use_dora=True, target_modules=["k_proj", "o_proj", "up_proj", "down_proj"])
LORA["cohere2-tiny"] = dict(r=2, lora_alpha=3, use_dora=True, target_modules=["q_proj", "o_proj", "up_proj"])
# Some modules with ranks and alphas of their own.
LORA["ernie-tiny"] = dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], rank_pattern={"q_proj": 4, "layers.1.mlp.up_proj": 3}, alpha_pattern={"q_proj": 5, "down_proj": 7})
LORA["llama-nf4"] = dict(r=4, lora_alpha=4, target_modules=["q_proj", "o_proj", "up_proj", "down_proj"])

# Adapters that are trained on weights held in 4 bits.
NF4 = {"llama-nf4"}

# What names in files have for a part of those in memory.
IN_FILES = {"GPTNeoX": ("lm_head", "embed_out"), "NemotronH": ("model.", "backbone."), "Mixtral": (".mlp.", ".block_sparse_moe."), "MiniMaxM2": (".mlp.", ".block_sparse_moe."),
            "GraniteMoe": (".router.", ".router.layer."), "GraniteMoeHybrid": (".router.", ".router.layer.")}

CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig", "Gemma4": "Gemma4TextConfig"}

# Whose gains of norms are 1 + weight.
UNIT_OFFSET = {"gemma3_text", "gemma", "gemma2", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}

OPT_SEED = 28  # a ReLU that flips between fp32 and fp64 would hide real errors: here none is that near its kink

# Saved as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype.
OLD_CONFIG = {"llama3-rope", "qwen2-tiny"}


def build(family, settings):
    sees = "text_config" in settings
    config = getattr(transformers, family + "Config" if sees else CONFIGS.get(family, family + "Config"))(**copy.deepcopy(settings))
    config._attn_implementation = config._experts_implementation = "eager"
    names = {"GPT2": "GPT2LMHeadModel"}
    return getattr(transformers, family + "ForConditionalGeneration" if sees else names.get(family, family + "ForCausalLM"))(config).float()


def randomise(model, generator):
    """Norm weights around 1 (Gemma's, to which 1 is added, around 0), biases around 0, matrices scaled so that activations keep their size."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        with torch.no_grad():
            if p.ndim == 1:
                p.copy_(noise * 0.2 + (1.0 if name.endswith("weight") and model.config.get_text_config().model_type not in UNIT_OFFSET else 0.0))
            elif "embed" in name or "wte" in name or "wpe" in name:
                p.copy_(noise * 0.3)
            else:
                p.copy_(noise * 1.2 / math.sqrt(p.shape[-1]))
    for name, p in model.named_parameters():
        if name.endswith("linear_attn.norm.weight"):  # its gains are not 1 + weight
            p.data += 1 if model.config.get_text_config().model_type in UNIT_OFFSET else 0
        if name.endswith("router.scale") or name.endswith("per_expert_scale"):
            p.data += 1
        if name.endswith("q_norm.weight") and getattr(model.config.get_text_config(), "hidden_size_per_layer_input", 0):
            p.data *= 0.3  # its scores are not divided, and it has more layers than others
        if name.endswith("A_log"):
            p.data -= 2  # states that last for several tokens
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias") or name.endswith("feed_forward.expert_bias"):
            b.copy_(8 + torch.randn(b.shape, generator=generator) * 0.2)  # as large as published ones: in bf16 they would be alike
        if name.endswith("layer_scalar"):
            b.copy_(1 + torch.randn(b.shape, generator=generator) * 0.2)


def make_tokens(vocabulary, skip, generator):
    """Random ids; `skip` keeps the padding id out, whose embedding PyTorch gives no gradient."""
    tokens = torch.randint(0, vocabulary, (BATCH, LENGTH), generator=generator)
    return tokens if skip is None else torch.where(tokens == skip, torch.full_like(tokens, vocabulary - 1), tokens)


def loss_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model, tokens, freeze=()):
    """Ten AdamW steps on one batch. losses[i] and norms[i] (before clipping) belong to the weights before step i+1."""
    for name, p in model.named_parameters():
        p.requires_grad = not any(fnmatch.fnmatchcase(name, pattern) for pattern in freeze)
    parameters = [p for p in model.parameters() if p.requires_grad]
    vectors = {id(p) for n, p in model.named_parameters() if p.ndim < 2 or n.endswith("bias")}  # GPT-OSS has a bias of each expert in one tensor
    groups = [dict(params=[p for p in parameters if id(p) not in vectors], weight_decay=DECAY),
              dict(params=[p for p in parameters if id(p) in vectors], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, foreach=False, **ADAMW)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)[1]
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        optimizer.step()
        losses.append(float(loss.detach()))
    losses.append(float(loss_of(model, tokens)[1].detach()))  # after the last step
    return losses, norms


def train_both(folder, tokens, freeze=()):
    """In fp32 and in float64."""
    results = {}
    for suffix, dtype in ("", torch.float32), ("64", torch.float64):
        results["losses" + suffix], results["grad_norms" + suffix] = train(again(folder, dtype).eval(), tokens, freeze)
    return results


def quantize(model):
    """Rounds the layers' weights to what bitsandbytes makes of their NF4 form. Returns the first."""
    first = None
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and ".layers." in name:
            weight = layer.weight.data.float()
            packed, state = bitsandbytes.functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=False)
            rounded = bitsandbytes.functional.dequantize_4bit(packed, state)
            layer.weight.data = rounded.to(layer.weight.dtype)
            first = first or {name + ".weight": rounded}
    return first


def again(folder, dtype):
    """The model of a folder, as its config.json says what it is."""
    name, = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder, attn_implementation="eager", experts_implementation="eager", dtype=dtype)


def adapt(folder, tokens, settings, generator):
    """An adapter with random factors in folder/lora, and its training."""
    model = again(folder, torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(p * (1 + torch.rand(p.shape, generator=generator)) if p.ndim == 1 else torch.randn(p.shape, generator=generator) * (0.3 if "lora_B" in name else p.shape[1] ** -0.5))
    path = folder / "lora"
    model.save_pretrained(path)
    if settings["lora_alpha"] != settings["r"]:
        model.eval()
        logits, loss = loss_of(model, tokens)
        loss.backward()
        save_file({"logits": logits.detach().contiguous()}, path / "expected.safetensors")
        save_file({n.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector"): p.grad.contiguous() for n, p in model.named_parameters() if "lora_" in n}, path / "grads.safetensors")
    (path / "README.md").unlink()
    config = json.loads((path / "adapter_config.json").read_text()) | dict(base_model_name_or_path="..")
    for names in config["target_modules"], config["target_parameters"]:
        isinstance(names, list) and names.sort()
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    results = {}
    for suffix, dtype in ("", torch.float32), ("64", torch.float64):
        base = again(folder, dtype)
        if folder.name in NF4:
            results["quantize"] = "nf4"
            save_file(quantize(base), folder / "nf4.safetensors")
        adapted = peft.PeftModel.from_pretrained(base, path, autocast_adapter_dtype=False).to(dtype).eval()
        results["losses" + suffix], results["grad_norms" + suffix] = train(adapted, tokens, [n for n, _ in adapted.named_parameters() if "lora_" not in n])
    (path / "losses.json").write_text(json.dumps(results, indent=1) + "\n")
    for file in path.iterdir():
        file.chmod(0o644)


def pack(path, settings, generator):
    """Random experts in MXFP4 and what transformers writes out; `range` has all levels with all scales whose numbers are finite."""
    unpack = transformers.integrations.mxfp4.convert_moe_packed_tensors
    experts, width, inner = settings["num_local_experts"], settings["hidden_size"], settings["intermediate_size"]
    levels = torch.tensor([i | (i + 1) << 4 for i in range(0, 16, 2)] * 2, dtype=torch.uint8)
    tensors = {"range_blocks": levels.expand(1, 253, 1, 16).contiguous(), "range_scales": torch.arange(253, dtype=torch.uint8)[None, :, None].contiguous()}
    for name, outs, ins in ("gate_up_proj", 2 * inner, width), ("down_proj", width, inner):
        tensors[name + "_blocks"] = torch.randint(0, 256, (experts, outs, ins // 32, 16), generator=generator).to(torch.uint8)
        tensors[name + "_scales"] = torch.randint(122, 126, (experts, outs, ins // 32), generator=generator).to(torch.uint8)
    for name in "range", "gate_up_proj", "down_proj":
        tensors[name] = unpack(tensors[name + "_blocks"], tensors[name + "_scales"]).contiguous()
    save_file(tensors, path)


def pack_fp8(path, generator):
    """Matrices in FP8 with scales of blocks, and what transformers makes of them: one with all codes that are numbers, one with incomplete
    blocks, which transformers does not read: by the definition in DeepSeek-V3's own code."""
    numbers = torch.tensor([c for c in range(256) if c & 127 != 127], dtype=torch.uint8)
    tensors = {"whole.weight": torch.cat([numbers, numbers[:2]]).repeat(2, 1).contiguous(), "ragged.weight": numbers[torch.randint(0, 254, (130, 132), generator=generator)]}
    tensors |= {"whole.weight_scale_inv": torch.rand(1, 2, generator=generator), "ragged.weight_scale_inv": torch.rand(2, 2, generator=generator)}
    unpack = transformers.integrations.finegrained_fp8.Fp8Dequantize(None)._dequantize_one
    for name in "whole", "ragged":
        q, scales = tensors[name + ".weight"].view(torch.float8_e4m3fn), tensors[name + ".weight_scale_inv"]
        tensors[name + ".weight"] = q
        if name == "whole":
            tensors[name] = unpack(q, scales, torch.float32).contiguous()
        else:
            rows, cols = q.shape
            tensors[name] = q.float() * scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    save_file(tensors, path)


def make_old(path, settings):
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config |= dict(rope_theta=settings["rope_theta"], rope_scaling=settings.get("rope_scaling"),
                   torch_dtype=config.pop("dtype"), transformers_version="4.57.0")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_flat(path):
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    config = text | config
    config["rope_scaling"] = dict(type="mrope", mrope_section=text["rope_parameters"]["mrope_section"])
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_case(folder, family, settings, seed):
    generator = torch.Generator().manual_seed(seed)
    model = build(family, settings)
    randomise(model, generator)
    model.eval()
    model.save_pretrained(folder, save_original_format=folder.name not in IN_MEMORY)
    if folder.name in FLAT_CONFIG:
        make_flat(folder / "config.json")
    if folder.name in OLD_CONFIG:
        make_old(folder / "config.json", settings)
    text = settings.get("text_config", settings)
    tokens = make_tokens(text["vocab_size"], text.get("pad_token_id"), generator)
    (folder / "tokens.json").write_text(json.dumps(tokens.tolist()) + "\n")

    logits, loss = loss_of(model, tokens)
    loss.backward()
    save_file({"logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)},
              folder / "expected.safetensors")
    old, new = IN_FILES.get(family, ("", ""))
    save_file({n.replace(old, new): p.grad.contiguous() for n, p in model.named_parameters() if p.grad is not None}, folder / "grads.safetensors")

    results = train_both(folder, tokens)
    assert abs(results["losses"][0] - float(loss.detach())) < 1e-6
    results["optimizer"] = dict(name="AdamW", **ADAMW, weight_decay=DECAY, decay_on="ndim >= 2", clip_grad_norm=CLIP)
    if folder.name in FROZEN:
        cases = [dict(freeze=freeze, **train_both(folder, tokens, freeze)) for freeze in FROZEN[folder.name]]
        (folder / "frozen.json").write_text(json.dumps(cases, indent=1) + "\n")
    if folder.name in LORA:
        adapt(folder, tokens, LORA[folder.name], generator)
    if family == "GptOss":
        pack(folder / "mxfp4.safetensors", settings, generator)
    if family == "DeepseekV3":
        pack_fp8(folder / "fp8.safetensors", torch.Generator().manual_seed(seed + 1))
    for file in folder.glob("*.*"):
        file.chmod(0o644)
    (folder / "losses.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{folder.name:14} loss {results['losses'][0]:.6f} -> {results['losses'][-1]:.6f}, "
          f"norm {results['grad_norms'][0]:.4f}, fp32 - fp64 after ten steps "
          f"{results['losses'][-1] - results['losses64'][-1]:+.1e}")


def write_rope(path):
    """The rotary tables of ROPE: of each position the cosines and then the sines of its pairs."""
    cases = []
    for name, (family, settings, length) in ROPE.items():
        heads = dict(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, vocab_size=8, intermediate_size=8, pad_token_id=None)
        model = build(family, heads | copy.deepcopy(settings))
        kind = dict(layer_type="full_attention") if family == "Gemma3" else {}
        rotary = next(m for n, m in model.named_modules() if n.endswith("rotary_emb"))
        cos, sin = (t[0, :, :t.shape[2] // 2] for t in rotary(torch.zeros(1), torch.arange(length)[None], **kind))
        table = [round(x, 7) for x in torch.cat([cos, sin], 1).flatten().tolist()]
        cases.append(dict(name=name, config=json.loads(model.config.to_json_string(use_diff=False)), length=length, table=table))
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


README = """# What PyTorch computes

Written by `tools/torch_fixtures.py` with torch {torch} and transformers {transformers} (or the version that a config.json names); do not edit by hand.
Each folder is a tiny random Hugging Face model (`config.json`, `model.safetensors`, fp32) and

- `tokens.json`: {batch} sequences of {length} token ids; inputs are `[:, :-1]`, targets `[:, 1:]`
- `expected.safetensors`: `logits` ({batch} x {inputs} x vocabulary) and `loss`, the mean cross entropy over all targets
- `grads.safetensors`: the gradient of `loss` for every parameter, under its Hugging Face name (a tied head is part of
  the embedding's)
- `losses.json`: `losses[i]` and `grad_norms[i]` (before clipping) at the weights before step i+1 of {steps} AdamW steps on
  that batch, then `losses[{steps}]` after the last; the same in float64 as `losses64`, `grad_norms64`; `optimizer`
- `rope.json` beside the folders: rotary tables, of each position the cosines and then the sines of its pairs, by config and sequence length
- `frozen.json`, in some: the same where the parameters whose names match `freeze` are not trained
- `mxfp4.safetensors` of gpt-oss-tiny: experts in MXFP4 as published folders have them, and in bf16 as transformers writes them out
- `fp8.safetensors` of deepseek3-tiny: matrices in FP8 with scales of blocks, and their numbers
- `lora`, in some: an adapter as peft {peft} writes it, and the same where it is trained on the model, with logits and
  gradients where alpha is not the rank; in llama-nf4 on weights that bitsandbytes {bitsandbytes} has rounded to NF4, of which `nf4.safetensors` has the first
- `noise.json`, in some: ten steps with dropout of adapters and NEFTune, by our random numbers. Written by `tools/noise_fixtures.py`
- `adapters`, in some: adapters as peft writes them with embedding, head or norms whole, or on a model with more tokens, and
  `grown.json`: ten steps of such a model. Written by `tools/adapter_fixtures.py`
- `preference.json`, in some: pairs of completions, their log-probabilities, and ten AdamW steps of preference optimisation in float64;
  `preference.safetensors`: gradients of its loss against another reference (`moved`). Written by `tools/preference_fixtures.py`
- `answers.json`, in some: single answers that are good or bad, the same prompts with answers to others, and ten such steps of KTO. Likewise
- `labels.json` and `labels.safetensors`, in some: texts with labels, what transformers' `...ForSequenceClassification` says of them, ten AdamW steps, gradients; `rewards.json`: pairs
  of texts, ten steps of a reward model. Written by `tools/label_fixtures.py`

All fp32 on a CPU with eager attention, except where it says 64. Two folders have a config.json as transformers 4 wrote
it (`rope_theta`, `rope_scaling`, `torch_dtype`): llama3-rope and qwen2-tiny; the others are as transformers 5 writes it.

The gradient of OPT's `k_proj.bias` is zero in exact arithmetic (softmax does not see a constant added to a row), so what
is stored there is rounding: compare it with a tolerance taken from the norm of all gradients, not from its own.
"""


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/torch")
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, (family, settings)) in enumerate(CASES.items(), start=1):
        seed = OPT_SEED if family == "OPT" else number if number <= 16 else zlib.crc32(name.encode())  # later ones in any order
        if not sys.argv[2:] or name in sys.argv[2:]:
            write_case(out / name, family, settings, seed)
    write_rope(out / "rope.json")
    (out / "README.md").write_text(README.format(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__, peft=peft.__version__, bitsandbytes=bitsandbytes.__version__, batch=BATCH, length=LENGTH,
        inputs=LENGTH - 1, steps=STEPS))


if __name__ == "__main__":
    main()
