"""A Ray Serve application that does nothing, to be scaled."""

from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Model:
    """Answers with a word."""

    def __call__(self) -> str:
        """The word."""
        return "done"


app = Model.bind()
