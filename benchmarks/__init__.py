"""``make bench``: the same work by danlu and by whichever other builders this machine has."""
