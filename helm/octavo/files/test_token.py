"""Asks an endpoint for its model, then for a streamed answer, and fails unless a token comes."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request

BASE, TIMEOUT = os.environ["BASE"], float(os.environ["TIMEOUT"])
# A Secret may hold several keys, one a line: any will do.
KEY = (os.environ.get("API_KEY", "").split() or [""])[0]
# Certificates are rarely for the Service's own name, and that is not what is tested.
UNVERIFIED = ssl._create_unverified_context()


def call(path, body=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, headers)
    return urllib.request.urlopen(request, timeout=TIMEOUT, context=UNVERIFIED)


try:
    with call("/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    messages = [{"role": "user", "content": "What is a book?"}]
    chat = {"model": model, "messages": messages, "max_tokens": 16, "stream": True}
    text = ""
    with call("/v1/chat/completions", chat) as answer:
        for line in answer:
            data = line.decode().removeprefix("data:").strip()
            if data and data != "[DONE]":
                chunk = json.loads(data)
                if "error" in chunk:
                    sys.exit(f"{BASE} broke the stream off: {chunk['error']}")
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
except urllib.error.HTTPError as error:
    sys.exit(f"{BASE} answered {error.code}: {error.read(2000).decode(errors='replace')}")
except OSError as error:
    sys.exit(f"{BASE} cannot be reached: {error}. Is the ServingDeployment there, and Available?")
if not text:
    sys.exit(f"{BASE} ended the stream without a token")
print(f"{model}: {text}")
