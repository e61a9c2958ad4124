"""Tables of calls that are errors: the tests of a module's failures."""

from inspect import Parameter, signature

import pytest


def failing(*cases, error=ValueError, match='{}'):
    """A test per case: a call, whose parameters are fixtures, and words that the message must have."""

    @pytest.mark.parametrize(('call', 'words'), cases)
    def test(request, call, words):
        names = [name for name, each in signature(call).parameters.items() if each.default is Parameter.empty]
        arguments = {name: request.getfixturevalue(name) for name in names}
        with pytest.raises(error, match=match.format(words)):
            call(**arguments)

    return test
