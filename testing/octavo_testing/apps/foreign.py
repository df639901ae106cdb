"""Another user's application on a shared Ray. Nothing that we do may touch it."""

from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Echo:
    def __call__(self) -> str:
        return "here"


app = Echo.bind()  # type: ignore[attr-defined]
