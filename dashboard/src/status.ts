import { computed, signal } from '@preact/signals'
import type { Status } from './api.ts'

/** As the shell last heard it; every view may look. */
export const status = signal<Status | undefined>(undefined)
export const isReadOnly = computed(() => status.value?.readOnly ?? false)
