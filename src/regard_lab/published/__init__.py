"""Forms of mechanisms as their papers or authors' code compute them, which leak the future in causal use.

They are here to be looked at and measured, under `module:Class` names such as
`regard_lab.published.sigmoid_published:SigmoidPublished`; the mechanisms of the catalog are strictly causal. They
replace the option `form=paper`: `lsh(form=paper)` is `regard_lab.published.lsh_published:LshPublished` now.
"""
