{{- /*
What the operator may do, verb by verb: what it calls and nothing more. Secrets are read by name and never listed; it
creates one, Ray's token. `get` on children finds what somebody else made under a name that is needed. What is new is
created; server-side apply asks for `patch`, and of Events, which it makes too, for `create`.
*/}}
{{- define "octavo.rules" -}}
- apiGroups: [serving.octavo.dev]
  resources: [servingdeployments]
  verbs: [get, list, watch, patch]
- apiGroups: [serving.octavo.dev]
  resources: [servingdeployments/status]
  verbs: [patch]
- apiGroups: [serving.octavo.dev]
  # Owner references that block deletion ask for it where OwnerReferencesPermissionEnforcement is on.
  resources: [servingdeployments/finalizers]
  verbs: [update]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}
