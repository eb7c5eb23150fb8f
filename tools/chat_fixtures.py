"""Makes the fixtures of data/jinja with transformers' renderer of chat templates.

    pip install transformers==5.23.0 tokenizers
    python tools/chat_fixtures.py

Reads data/jinja/testdata: templates, conversations.json and snippets.json, and writes what
transformers makes of them: renderings.json, and snippets.json itself with the results.
"""
import datetime
import json
import os

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
        json.dump(value, f, indent=1, sort_keys=True)
        f.write("\n")


def render(template, **variables):
    """What a template gives, or the error that it raises."""
    try:
        return {"text": chat_template_utils._compile_jinja_template(template).render(**variables)}
    except Exception as e:  # whatever it is, it has to be an error here too
        return {"error": type(e).__name__ + ": " + str(e)}


def renderings():
    conversations = json.loads(read("jinja", "testdata", "conversations.json"))
    out = {}
    for file in sorted(os.listdir(os.path.join(root, "jinja", "testdata", "templates"))):
        template = read("jinja", "testdata", "templates", file)
        for name, messages in conversations.items():
            for prompt in (False, True):
                key = f"{file}/{name}/{'prompt' if prompt else 'whole'}"
                out[key] = render(template, messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **special)
    write(out, "jinja", "testdata", "renderings.json")


def snippets():
    cases = json.loads(read("jinja", "testdata", "snippets.json"))
    for case in cases:
        case.pop("text", None), case.pop("error", None)
        case.update(render(case["template"], **case.get("variables", {})))
    write(cases, "jinja", "testdata", "snippets.json")


if __name__ == "__main__":
    renderings()
    if os.path.exists(os.path.join(root, "jinja", "testdata", "snippets.json")):
        snippets()
