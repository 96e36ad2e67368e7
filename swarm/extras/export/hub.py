"""A model's directory as a repository of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import httpx
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError

from swarm.environments.sources.dataset import is_hub_id
from swarm.errors import ConfigError

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


def check_push(name: str, is_dry: bool) -> None:
    """Raises `ConfigError` unless the name is OWNER/NAME, and, unless nothing is sent, without a token."""
    if not is_hub_id(name):
        raise ConfigError(f"--push takes OWNER/NAME, got {name}")
    if not is_dry and get_token() is None:
        raise ConfigError(f"--push needs a token of the Hugging Face hub: {LOGIN}")


def push(directory: Path, name: str, public: bool) -> str:
    """Send the files of `directory` to the repository `name`, made if it is missing; its address.

    Raises `ConfigError` where the hub refuses or cannot be reached, and for a public repository unless `public`: then
    nothing was sent.
    """
    api = HfApi()
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        if not public and not api.model_info(name).private:
            raise ConfigError(f"nothing was sent: {name} exists and is public; add --public, or choose another name")
        sent = api.upload_folder(repo_id=name, folder_path=directory, commit_message="Upload by swarm export")
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise ConfigError(f"{directory} is written, but not sent to {name}: {_why(error, name)}") from error
    return str(sent.repo_url)


def _why(error: Exception, name: str) -> str:
    response = getattr(error, "response", None)
    match None if response is None else response.status_code:
        case 401:
            return f"the hub does not accept the token; {LOGIN}"
        case 403:
            return f"the token has no right to write to {name.partition('/')[0]}; use one that has"
        case None:
            return f"the hub cannot be reached ({type(error).__name__}); try again with `hf upload`"
        case status:
            return f"the hub answered {status}: {str(error).strip().splitlines()[-1]}"
