"""Properties of a deployed application that its answers and metrics show."""

import httpx

from octavo_testing.serving.cluster import APP, Cluster


def ask(cluster: Cluster, **fields: object) -> httpx.Response:
    """Complete one token at the gateway's own port."""
    return cluster.complete(cluster.direct, **{"max_tokens": 1, **fields})


def cached(cluster: Cluster, tokens: int) -> int:
    """Return how many tokens of a prompt are in the cache when it comes again."""
    prompt = cluster.new_prompt(tokens)
    for _ in range(2):
        usage = ask(cluster, prompt=prompt).json()["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def steps(cluster: Cluster, tokens: int) -> int:
    """Return how many steps an idle engine took for a prompt and one token."""
    ask(cluster)  # what was reported before is reported by now
    before = cluster.metric("octavo_engine_steps_total")
    ask(cluster, prompt=cluster.new_prompt(tokens))
    return int(cluster.metric("octavo_engine_steps_total") - before)


def refusal(cluster: Cluster) -> str:
    """Return the reason of an immediate refusal, and nothing if the request waits or is answered."""
    body = {"model": APP, "prompt": cluster.new_prompt(4), "max_tokens": 1}
    try:
        answer = httpx.post(f"{cluster.direct}/v1/completions", json=body, timeout=1, trust_env=False)
    except httpx.TimeoutException:
        return ""
    return str(answer.json()["error"]["message"]) if answer.status_code == 429 else ""
