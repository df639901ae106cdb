"""Plain HTTP, without the proxies that the environment names."""

import ssl

import httpx


def get(url: str, timeout_s: float = 10, tls: ssl.SSLContext | bool = True) -> str:
    """Return the body; raise ``httpx.HTTPError`` for every status but success."""
    return httpx.get(url, timeout=timeout_s, verify=tls, trust_env=False).raise_for_status().text


def answers(url: str, tls: ssl.SSLContext | bool = True) -> bool:
    """Return whether a GET succeeds."""
    try:
        get(url, 5, tls)
    except httpx.HTTPError:
        return False
    return True
