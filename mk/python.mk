.PHONY: python
## make python     generate the messages of client/python again, after a change of proto/
python:
	@sh tools/python-proto.sh client/python/outrider/_proto
