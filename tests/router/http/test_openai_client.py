"""OpenAI's own client against a gateway that listens."""

import openai
import pytest


async def test_chat_completion(client, user, pool):
    answer = await client.chat.completions.create(model="bytes", messages=user, temperature=0, seed=1, max_tokens=20)
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len("<|user|>Hi\n<|bot|>")
    assert answer.usage.completion_tokens == len("Hello, world") + 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    sampling = pool.requests[0].sampling
    assert (sampling.temperature, sampling.seed, sampling.max_tokens) == (0, 1, 20)


async def test_streamed_chat(client, user):
    stream = await client.chat.completions.create(
        model="bytes", messages=user, stream=True, n=2, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        deltas = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert deltas[0].delta.role == "assistant"
        assert "".join(delta.delta.content or "" for delta in deltas) == "Hello, world"
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2 * (len("Hello, world") + 1)
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_completion_of_several_prompts(client):
    answer = await client.completions.create(model="bytes", prompt=["ab", "cd"], n=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[:2] for choice in answer.choices] == ["ab", "ab", "cd", "cd"]
    assert answer.usage.prompt_tokens == 4


async def test_models(client):
    models = await client.models.list()
    assert [model.id for model in models.data] == ["bytes"]
    assert (await client.models.retrieve("bytes")).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
