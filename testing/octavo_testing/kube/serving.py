"""One ServingDeployment as its user sees it: through kubectl, and by its tokens."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.waiting import eventually

KIND = "servingdeployments.serving.octavo.dev"


@dataclass(frozen=True, slots=True)
class Serving:
    kubectl: Kubectl
    name: str

    @property
    def document(self) -> dict[str, Any]:
        return self.kubectl.get(KIND, self.name)

    @property
    def exists(self) -> bool:
        return self.kubectl.find(KIND, self.name) is not None

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.document.get("status") or {})

    def condition(self, type_: str) -> dict[str, Any]:
        return self.kubectl.condition(KIND, self.name, type_)

    def says(self, type_: str, status: str, reason: str = "") -> bool:
        """Return whether a condition of the current generation has this status and reason."""
        document = self.document
        for c in (document.get("status") or {}).get("conditions", []):
            if c["type"] == type_:
                current = c.get("observedGeneration") == document["metadata"]["generation"]
                return current and c["status"] == status and reason in ("", c["reason"])
        return False

    def wait(self, type_: str, status: str, reason: str = "", timeout_s: float = 90) -> float:
        """Return the seconds until the condition has this status and reason."""
        began = time.monotonic()
        try:
            eventually(
                f"{self.name}: {type_}={status} {reason}", lambda: self.says(type_, status, reason), timeout_s, 0.2
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status, indent=1)}") from None
        return time.monotonic() - began

    def wait_ready(self, timeout_s: float = 120) -> float:
        """Wait with kubectl, which compares the condition's generation with the object's; return the seconds."""
        began = time.monotonic()
        try:
            self.kubectl.run(
                "wait",
                "--for=condition=Ready",
                f"{KIND}/{self.name}",
                f"--timeout={timeout_s:.0f}s",
                timeout_s=timeout_s + 10,
            )
        except Refused as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status, indent=1)}") from None
        return time.monotonic() - began

    def edit(self, change: Mapping[str, Any]) -> int:
        """Merge into the spec, and return the new generation."""
        self.kubectl.patch(KIND, self.name, {"spec": change})
        return int(self.document["metadata"]["generation"])

    def events(self) -> list[tuple[str, str, str]]:
        """Return type, reason and message of its events, oldest first."""
        found = self.kubectl.list("events")
        about = [e for e in found if (e.get("involvedObject") or e.get("regarding") or {}).get("name") == self.name]
        about.sort(key=lambda e: e["metadata"]["creationTimestamp"])
        return [(e["type"], e["reason"], e.get("message") or e.get("note") or "") for e in about]

    def said(self, reason: str) -> bool:
        return any(event[1] == reason for event in self.events())


def complete(
    base: str, model: str, max_tokens: int = 8, prompt: str = "Once upon a time", timeout_s: float = 60
) -> str:
    """Return the text of one completion at an OpenAI base address, with ``/v1`` in it."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    answer = httpx.post(f"{base}/completions", json=body, timeout=timeout_s, trust_env=False).raise_for_status()
    return str(answer.json()["choices"][0]["text"])
