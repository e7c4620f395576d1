"""The frozen schema of a run, its rules, and the way from a YAML file to it.

``load.load_config`` reads a file, ``load.config_from_dict`` plain values; both return one of the three run
configurations of ``root`` or raise one error that carries everything that is wrong.
"""
