"""A model URI leads to one place, or to a message that says what to write instead."""

import pytest

from phasewise_runtime.model_uri import ModelLocation, ModelUriError, model_location

GOOD = {
    "file:///opt/models/tiny": ModelLocation("/opt/models/tiny"),
    "file:///opt//models/./tiny/": ModelLocation("/opt/models/tiny"),
    "hf://meta-llama/Llama-3.1-8B": ModelLocation("meta-llama/Llama-3.1-8B", local=False, mount="/models"),
    "hf://gpt2": ModelLocation("gpt2", local=False, mount="/models"),
    "hf://org/name@refs/pr/1": ModelLocation("org/name", "refs/pr/1", local=False, mount="/models"),
    "pvc://weights/llama/8b": ModelLocation("/models/llama/8b", claim="weights", mount="/models"),
    "pvc://weights": ModelLocation("/models", claim="weights", mount="/models"),
}

BAD = {
    "": "has no scheme",
    "/opt/models/tiny": "has no scheme",
    "meta-llama/Llama-3.1-8B": "write hf://org/name",
    "file://models/tiny": "three slashes",
    "file:///models/../etc": "without '..'",
    "hf://": "write hf://org/name",
    "hf://a/b/c": "write hf://org/name",
    "hf://--model/x": "write hf://org/name",
    "hf://org/name@": "after @ write a branch",
    "hf://org/name@a b": "after @ write a branch",
    "pvc://": "pvc://claim-name/path",
    "pvc://Weights/x": "pvc://claim-name/path",
    "pvc://weights/../../etc": "without '..'",
    "s3://bucket/model": "s3:// is not supported yet; copy the weights",
    "oci://registry/model": "oci:// is not supported yet; copy the weights",
    "ftp://host/model": "scheme ftp is unknown; use hf://",
}


@pytest.mark.parametrize("uri", GOOD)
def test_a_good_uri_leads_to_one_place(uri: str) -> None:
    assert model_location(uri) == GOOD[uri]


@pytest.mark.parametrize("uri", BAD)
def test_a_bad_uri_says_what_to_write(uri: str) -> None:
    with pytest.raises(ModelUriError) as error:
        model_location(uri)
    assert BAD[uri] in str(error.value)
