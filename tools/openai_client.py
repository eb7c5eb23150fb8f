"""The real openai client against `athanor api`: completions, echo with logprobs, chats, streams, models, errors, and a client that leaves.

  openai_client.py BINARY FOLDER

Needs openai (tried with 3.57). FOLDER is a model folder with a chat template, such as make_folder in lm_eval_check.py makes. The server is started on a free port, with a key, and stopped
at the end. Exits with 1 at the first answer that is not as it should be.
"""

import math
import os
import re
import signal
import subprocess
import sys



def serve(binary, folder, key, context=256, sequences=4, waiting=8):
    """Starts the server; returns it and its address."""
    command = [binary, "api", folder, "--listen", "127.0.0.1:0", "--name", "tiny", "--sequences", str(sequences), "--context", str(context), "--waiting", str(waiting)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"ATHANOR_API_KEY": key})
    for line in server.stderr:
        found = re.search(r"http://\S+/v1", line)
        print(line, end="")
        if found:
            return server, found.group().rstrip(",")
    sys.exit("the server did not start")


def completions(client):
    args = dict(model="tiny", max_tokens=20, seed=3, temperature=0.7)
    whole = client.completions.create(prompt=["gold", "silver is"], **args)
    assert [c.index for c in whole.choices] == [0, 1] and whole.usage.completion_tokens <= 40, whole
    alone = client.completions.create(prompt="silver is", echo=True, **args)
    assert alone.choices[0].text == "silver is" + whole.choices[1].text, (alone, whole)
    text = "".join(part.choices[0].text for part in client.completions.create(prompt="silver is", stream=True, **args))
    assert text == whole.choices[1].text, text
    scored = client.completions.create(model="tiny", prompt="gold and silver", max_tokens=1, echo=True, logprobs=1, temperature=0).choices[0].logprobs
    assert scored.token_logprobs[0] is None and all(p <= 0 for p in scored.token_logprobs[1:]), scored
    assert len(scored.tokens) == len(scored.top_logprobs) == len(scored.text_offset), scored


def chats(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is gold?"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=20, temperature=0, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"), whole
    assert math.isclose(choice.logprobs.content[0].logprob, choice.logprobs.content[0].top_logprobs[0].logprob), choice
    text, usage = "", None
    for part in client.chat.completions.create(model="tiny", messages=messages, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}):
        usage = part.usage or usage
        for c in part.choices:
            text += c.delta.content or ""
    assert text == choice.message.content and usage == whole.usage, (text, whole, usage)


def refusals(client, base):
    for error, ask in [
        (openai.AuthenticationError, lambda: openai.OpenAI(base_url=base, api_key="wrong", max_retries=0).models.list()),
        (openai.NotFoundError, lambda: client.completions.create(model="other", prompt="a")),
        (openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="a", n=3)),
        (openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="gold " * 500)),
        (openai.NotFoundError, lambda: client.embeddings.create(model="tiny", input="a")),
    ]:
        try:
            ask()
        except error as e:
            print("refused:", e)
        else:
            sys.exit(f"{error} was expected")


def main():
    server, base = serve(sys.argv[1], sys.argv[2], "secret key")
    try:
        client = openai.OpenAI(base_url=base, api_key="secret key", max_retries=0)
        assert [m.id for m in client.models.list()] == ["tiny"]
        completions(client)
        chats(client)
        refusals(client, base)
        for _ in range(20):  # more than there is room for, if those who leave kept their place
            stream = client.completions.create(model="tiny", prompt="gold", max_tokens=200, stream=True)
            next(iter(stream))
            stream.close()
        completions(client)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=30)
    assert code == 0, code
    print("openai", openai.__version__, "agrees")


if __name__ == "__main__":
    import openai

    main()
