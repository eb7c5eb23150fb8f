"""Makes the fixtures of data/jinja with transformers' renderer of chat templates.

    pip install transformers==5.23.0 tokenizers
    python tools/chat_fixtures.py

Reads data/jinja/testdata: templates, conversations.json and snippets.json, and writes what
transformers makes of them: renderings.json, and snippets.json itself with the results. Of the tokenizers of data/bpe/testdata it makes
folders with chat templates in data/chat/testdata, and tokens.json: the tokens of the conversations by these, and which of
them the assistant says.
"""
import datetime
import json
import os

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
special = {"bos_token": "<s>", "eos_token": "</s>"}


class frozen(datetime.datetime):
    """The day on which all renderings are made."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 34, 56)


chat_template_utils.datetime = frozen


def read(*path):
    with open(os.path.join(root, *path), encoding="utf-8") as f:
        return f.read()


def write(value, *path):
    with open(os.path.join(root, *path), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=None if path[-1] == "tokens.json" else 1, sort_keys=True)
        f.write("\n")


def render(template, **variables):
    """What a template gives, or the error that it raises."""
    try:
        return {"text": chat_template_utils._compile_jinja_template(template).render(**variables)}
    except Exception as e:  # whatever it is, it has to be an error here too
        return {"error": type(e).__name__ + ": " + str(e)}


def whole(conversation):
    """A conversation is a list of messages, or an object with messages and tools."""
    return conversation if isinstance(conversation, dict) else {"messages": conversation, "tools": None}


def renderings():
    conversations = json.loads(read("jinja", "testdata", "conversations.json"))
    out = {}
    for file in sorted(os.listdir(os.path.join(root, "jinja", "testdata", "templates"))):
        template = read("jinja", "testdata", "templates", file)
        for name, c in conversations.items():
            for prompt in (False, True):
                key = f"{file}/{name}/{'prompt' if prompt else 'whole'}"
                out[key] = render(template, **whole(c), add_generation_prompt=prompt, documents=None, **special)
    write(out, "jinja", "testdata", "renderings.json")


def snippets():
    cases = json.loads(read("jinja", "testdata", "snippets.json"))
    for case in cases:
        case.pop("text", None), case.pop("error", None)
        case.update(render(case["template"], **case.get("variables", {})))
    write(cases, "jinja", "testdata", "snippets.json")


FOLDERS = {
    "chatml": {
        "tokenizer": "qwen2.json", "special": ["<|im_start|>", "<|im_end|>"], "content": ["<think>", "</think>"],
        "config": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "template": "{% if tools %}{{ '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
                    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% if message.role == 'assistant' %}"
                    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}"
                    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    },
    "llama2": {
        "tokenizer": "llama2.json", "special": [], "content": [],
        "config": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "template": "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ ' ' + message.content.strip() + ' ' + eos_token }}"
                    "{% endgeneration %}{% else %}{{ bos_token + '[INST] ' + message.content.strip() + ' [/INST]' }}{% endif %}{% endfor %}",
    },
}


def folder(name, spec):
    """Writes a folder with a tokenizer and a template, and returns its tokenizer."""
    t = Tokenizer.from_file(os.path.join(root, "bpe", "testdata", spec["tokenizer"]))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in spec["special"]])
    t.add_tokens([AddedToken(s, normalized=False) for s in spec["content"]])
    path = os.path.join(root, "chat", "testdata", name)
    os.makedirs(path, exist_ok=True)
    t.save(os.path.join(path, "tokenizer.json"), pretty=False)
    write({"tokenizer_class": "PreTrainedTokenizerFast", **spec["config"]}, "chat", "testdata", name, "tokenizer_config.json")
    with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(spec["template"])
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(path, "tokenizer.json"), chat_template=spec["template"], **spec["config"])


def tokens():
    conversations = json.loads(read("jinja", "testdata", "conversations.json"))
    out = {}
    for name, spec in FOLDERS.items():
        t = folder(name, spec)
        for key, c in conversations.items():
            messages, tools = whole(c)["messages"], whole(c)["tools"]
            try:
                plain = t.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
                safe = t.apply_chat_template(messages, tools=tools, sanitize_control_tokens=True)
            except Exception:  # what the template does not know
                continue
            out[f"{name}/{key}"] = {"ids": plain["input_ids"], "mask": plain["assistant_masks"], "safe": safe["input_ids"]}
    write(out, "chat", "testdata", "tokens.json")


if __name__ == "__main__":
    tokens()
    renderings()
    if os.path.exists(os.path.join(root, "jinja", "testdata", "snippets.json")):
        snippets()
